DELETE FROM fairlead_heartbeats;
DELETE FROM fairlead_schedule_records;
