"""A Stripe for a laptop: localstripe, extended with prices, several items, checkout and portal pages.

From localstripe come the store, its object model, customers, products and how forms are read. Ours are what the
pinned version of the API shows otherwise or has anew: prices, subscriptions with items that carry their period,
invoices with a parent, sessions with pages, events of every change, and deliveries that are signed when they
are sent, repeated until they are taken, and kept over a restart. Older shapes are shown to who asks for an older
version.

    python -m webhost.local.stripe --port 8420 --directory .local/stripe

Its limits: time does not pass by itself (`/local/subscriptions/{id}/renew` does it); no tax, no proration, no
coupons, no currency but the price's, no 3-D Secure, no card but by its number: 4242 4242 4242 4242 pays,
4000 0000 0000 0002 is declined, 4000 0000 0000 0341 pays once and fails at each renewal. A subscription that stays
unpaid stays past due. Rate limits and permissions of keys are not enforced. Unknown parameters of our own
objects are refused, as Stripe does.

What tests and demos need beside the API is below `/local/` (control.py): calls seen, faults, deliveries held
back, lost, turned round or repeated, and subscriptions in any state that Stripe might come to know.
"""
