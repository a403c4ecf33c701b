"""What every backend of ExLlama models uses: nothing here knows which library computes."""
