-- Return the newest notification, then the sections of the queue that were written to.
return {newest(notifications), unpack(redis.call('SMEMBERS', sections))}
