<?php

return [
    'default' => 'single',
    'channels' => ['single' => ['driver' => 'single', 'path' => getenv('TICKR_TEST_DIR') . '/laravel.log']],
];
