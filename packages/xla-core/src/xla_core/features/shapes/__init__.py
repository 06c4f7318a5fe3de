"""Few shapes for data of many lengths: sizes that are chosen from the lengths, and batches that are padded to them."""
