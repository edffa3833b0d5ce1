"""In-memory adapters of the ports (store, ledger, queue, lock table), with named points where tests inject faults."""
