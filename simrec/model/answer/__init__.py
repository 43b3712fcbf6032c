"""What a fitted model answers beyond predictions: lists, neighbours, reasons."""
