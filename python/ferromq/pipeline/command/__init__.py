"""What all commands `ferromq pipeline NAME` share."""
