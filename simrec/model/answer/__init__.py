"""What a fitted model answers: lists, neighbours, reasons, uncertainty."""
