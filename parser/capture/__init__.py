"""Capture files: pcap and pcapng, compressed or not, as Arrow batches. `reader.open_capture` is the entry point."""
