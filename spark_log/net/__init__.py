"""HTTP between clients and a coordinator: server, client, messages, tokens, quotas."""
