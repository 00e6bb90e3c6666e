"""Real-looking orders, invoices and reviews, and the questions that Extract asks about them.

A document is made of facts, in one of many layouts; prompts and answers are made by the product's own code, so that
what is trained is what is asked. Knows nothing of the model.
"""
