"""Mutation testing: faults that nobody had in mind, planted one by one, and which tests notice them.

Rules
- A mutant is named by its file, its function, its operator and the text that it replaces, never by a line:
  results outlast what is moved.
- It is judged twice: by the functional tests that reach its line, and by the simulator. Both shares count.
- Nothing is changed in place: mutants live in a copy of the project.
- A mutant that nobody catches is listed, until it is caught or a person has said in ``judged.toml`` why it
  changes nothing that is promised.
"""
