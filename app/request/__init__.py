"""What a request may ask for, whatever its wire format."""
