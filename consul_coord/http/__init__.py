"""The thin typed layer over Consul's HTTP API: what is sent, how a reply is read, and when to try again."""
