"""What commands show to people: progress bars, sizes, tables."""
