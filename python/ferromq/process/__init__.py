"""The process itself: its clock, its log, its temporary directories, and what a fork does to it."""
