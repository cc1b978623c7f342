"""What all stages use: errors, device, ranks, random streams, files, log, layout. Imports nothing of ours."""
