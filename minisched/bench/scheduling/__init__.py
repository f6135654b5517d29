"""What scheduling costs the host, beside others: begin at ``scheduler``, then ``host``."""
