"""What a training in which ranks take turns at batches (`servers.asynchronous`) has to do with others."""
