DELETE FROM fairlead_heartbeats;
DELETE FROM fairlead_running;
DELETE FROM fairlead_schedule_records;
