"""How servers answer under load: ours and others with the same model, one after another."""
