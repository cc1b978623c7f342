"""What a run writes beside its own folder's records where the user asks for it; nothing of it changes the run.

sinks                 what takes the records, and which of them a user asked for
dllogger              a file as NVIDIA's DLLogger writes it
weights_and_biases    a run of Weights & Biases
trace                 a profile of a few steps
"""
