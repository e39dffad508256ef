DELETE FROM fairlead_claims;
