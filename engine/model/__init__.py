"""What a model directory says of its model, without torch."""
