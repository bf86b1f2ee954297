-- Jobs of a schedule, newest or oldest first, from any job on, without sorting: the filter word schedule:NAME. Ticks that
-- were skipped have no job, and stand together before all others of their schedule.
ALTER TABLE ticks ADD KEY ticks_job (schedule, job_id);
