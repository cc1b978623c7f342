"""From what the user names to documents: files found and recognised, each kind with its reader."""
