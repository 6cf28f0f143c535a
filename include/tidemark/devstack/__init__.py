"""The services on this machine: Java, jars, ports, brokers, Airflow's parts, and the file that records them."""
