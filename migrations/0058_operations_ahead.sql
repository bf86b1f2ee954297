-- How far a bulk operation is ahead of its position, while it leaves jobs that other sessions lock: JSON with these jobs and
-- the place behind which the walk goes on. NULL while no job is left. The position itself stays in front of the first of
-- them, so a binary that does not know the column handles some jobs once more and leaves none out.
ALTER TABLE operations ADD COLUMN ahead MEDIUMTEXT NULL;
