"""ARXML (AUTOSAR 4): the services of SOME/IP, and the frames and PDUs of FlexRay and PDU transport, read with autosar-data."""
