"""Documents to extract rows from: orders, invoices and reviews, their types, and the rows that are expected."""
