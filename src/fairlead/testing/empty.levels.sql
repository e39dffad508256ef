DELETE FROM fairlead_backlog;
DELETE FROM fairlead_backlog_lanes;
DELETE FROM fairlead_backlog_owners;
