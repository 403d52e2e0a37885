"""A visit to a GPU machine: questions asked in an order, every answer kept at once.

``conductor`` needs nothing but Python: it runs the steps of ``plan``, each a process with a limit
of its own, and packs what comes back. Steps ask the ``questions``; ``rows`` keeps the answers.
"""
