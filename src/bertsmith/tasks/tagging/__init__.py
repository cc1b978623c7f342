"""Entities in text: tags of words, marked spans, and how both lie on word pieces and windows."""
