"""What is measured: block and slot allocation, pools, tables, and the manager over them."""
