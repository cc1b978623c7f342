"""How servers answer under load: ours beside other servers of the same model, each alone on the machine."""
