"""SOME/IP payloads: what they contain, by Wireshark's tables, FIBEX or ARXML, and their values as rows of `signals`."""
