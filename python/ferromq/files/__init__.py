"""Small files on disk: replaced atomically, with the previous content kept in a backup."""
