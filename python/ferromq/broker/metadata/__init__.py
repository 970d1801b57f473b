"""What a broker keeps about topics and consumer groups."""
