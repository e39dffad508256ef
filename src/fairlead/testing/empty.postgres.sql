DELETE FROM fairlead_heartbeats;
DELETE FROM fairlead_schedule_records;
DELETE FROM fairlead_bulk_stage;
