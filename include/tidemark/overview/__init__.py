"""The Streams page without Airflow: what an operator sees of each application, as typed objects and as HTML."""
