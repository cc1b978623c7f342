"""What every stage stands on: errors, device, ranks, random streams, files, log, layout. Imports nothing of ours."""
