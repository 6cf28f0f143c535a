"""Changes to an application that has state: another topology version, another number of tasks, other offsets."""
