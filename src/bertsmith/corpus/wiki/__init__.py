"""Dumps of MediaWiki: the articles, and their wikitext as plain text."""
