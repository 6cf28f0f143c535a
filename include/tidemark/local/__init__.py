"""What runs on this machine: Java, jars, ports, brokers, Airflow's parts, and the one file that records them."""
