"""Methods that DSOKR is compared with."""
