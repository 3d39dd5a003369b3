"""How documents become sequences of one length."""
