"""What a broker measures and reports."""
