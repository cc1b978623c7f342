"""What several ranks gain over one, and what it costs to sum their gradients."""
