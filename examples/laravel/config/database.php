<?php

// The shop uses no database. Laravel asks for the setting all the same.
return ['default' => 'none', 'connections' => []];
