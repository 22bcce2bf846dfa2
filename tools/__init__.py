"""Programs that make what the package embeds; run them from the root of the repository."""
